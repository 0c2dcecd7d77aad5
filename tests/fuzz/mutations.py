"""Ways to damage a file: of bytes, of arrays and archives, of JSON, YAML and tables. Everything follows from a seed."""

import copy
import io
import json
import re
import struct
import zipfile

VALUES = [None, True, -1, 0, 0.5, 1e308, 10**30, "", "x", "\x1b[31m", "\ud800", "../../up", [], {}, [[]], [None], "nan"]
"""What stands in the place of something else in JSON."""
TOKENS = ["NaN", "-Infinity", "1e999", "9" * 5000, "[" * 5000, '"\\ud800"', "'", "{", ",", "\x00", "\x1b[2J", "tru"]
"""What stands in the text of JSON."""
CELLS = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 400,
    "-1",
    "0.5",
    '"',
    '""',
    "\x00",
    "\x1b[31m",
    "é",
    "None",
    ";",
    "a,b",
]
"""What stands in a cell of a table."""
YAML = [
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "loss: &l [*l]\n",
    "? [a, b]\n: c\n",
    "data: !!python/object/apply:os.getcwd []\n",
    "lr: .nan\n",
    "lr: .inf\n",
    "epochs: 2026-11-99\n",
    "out: [a, b]\n",
    "\tdata: x\n",
    "data: !!binary aGk=\n",
    "data: !!int abc\n",
    "losses: {a: b}\n",
    "seeds: [[[]]]\n",
    "%YAML 9.9\n---\n",
    "--- a\n--- b\n",
    "model_options: {width: " + "9" * 5000 + "}\n",
    "class_names: " + "[" * 3000 + "\n",
]
BOMB = "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))


def flip(data, random):
    """A few bits the other way."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(data, random):
    """The end is missing."""
    return data[: random.choice((0, 1, 5, len(data) // 2, max(0, len(data) - 1), random.randrange(len(data) + 1)))]


def splice(data, random):
    """A part removed, doubled, moved, zeroed or made anew."""
    first, second = sorted(random.randrange(len(data) + 1) for _ in range(2))
    second = min(second, first + random.choice((1, 4, 64, 4096)))
    part, place = data[first:second], random.randrange(len(data) + 1)
    return random.choice(
        (
            data[:first] + data[second:],
            data[:place] + part + data[place:],
            data[:first] + bytes(len(part)) + data[second:],
            data[:first] + random.randbytes(len(part)) + data[second:],
            part,
        )
    )


def header(data, random):
    """What the header of an array says: shapes, types, order."""
    edits = (
        (rb"\((\d+),", b"(%d," % random.choice((0, 1, 7, 10**6, 10**15, 10**40))),
        (rb"\((\d+),", b"(-\\1,"),
        (rb"<f4|<f8|<i8|<i4", random.choice((b"|O", b"<U9", b">f4", b"<c8", b"|V0", b"<M8", b"|b1", b"<f2", b"|S0"))),
        (rb"False", random.choice((b"True", b"[]", b"x" * 40))),
        (rb"\x93NUMPY.", random.choice((b"\x93NUMPY\x09", b"", b"\x93NUMPY\x02"))),
        (rb"'shape'", random.choice((b"'shap'", b'"' * 20, b"(" * 300))),
    )
    pattern, new = random.choice(edits)
    return re.sub(pattern, new if b"\\1" in new else lambda _: new, data, count=random.choice((1, 0)))


def repack(data, random):
    """The members of an archive packed again: renamed, without magic, encrypted by their flags, of another size."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {one.filename: archive.read(one) for one in archive.infolist()}
    except Exception:  # noqa: BLE001
        return data[::-1]
    name = random.choice(sorted(members))
    kind = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    way = random.randrange(7)
    if way == 0:
        members[name] = members[name][6:]
    elif way == 1:
        members[name.upper()] = members.pop(name)
    elif way == 2:
        members[name] = header(members[name], random)
    elif way == 3:
        members[name] = members[random.choice(sorted(members))]
    elif way == 4:
        members.pop(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        for own, content in members.items():
            archive.writestr(own, content)
    found = bytearray(packed.getvalue())
    if way == 5:  # encrypted, it says
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            for match in re.finditer(re.escape(mark), bytes(found)):
                found[match.start() + offset] |= 1
    elif way == 6:  # another size
        place = bytes(found).find(b"PK\x01\x02") + random.choice((10, 16, 20, 24, 42))
        found[place : place + 4] = struct.pack("<I", random.choice((0, 1, 2**31, 2**32 - 1)))
    return flip(bytes(found), random) if kind != zipfile.ZIP_STORED and way == 4 else bytes(found)


def rewrite_json(data, random):
    """Other values, keys and lengths, or text that is no JSON."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return splice(data, random)
    if random.random() < 0.25:
        places = [match.start() for match in re.finditer(rb"[\[{:,]", data)]
        place = random.choice(places) + 1
        return data[:place] + random.choice(TOKENS).encode() + data[place:]
    content = copy.deepcopy(content)
    for _ in range(random.choice((1, 1, 1, 3))):
        holders = list(_holders(content))
        if not holders:
            break
        holder = random.choice(holders)
        key = random.choice(sorted(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        way = random.randrange(4)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif way == 1:
            holder[f"{key}x"] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(random.choice(VALUES))
    return json.dumps(content).encode()


def _holders(content):
    """Every dict and list of JSON that holds something."""
    inside = list(content.values()) if isinstance(content, dict) else content if isinstance(content, list) else []
    if inside:
        yield content
    for one in inside:
        yield from _holders(one)


def rewrite_lines(data, random):
    """Lines of JSON, one of them damaged."""
    lines = data.split(b"\n")
    place = random.randrange(len(lines))
    lines[place] = random.choice((b"", b"[]", b"3", b"{", rewrite_json(lines[place] or b"{}", random)))
    return b"\n".join(lines)


def rewrite_table(data, random):
    """Cells, rows and headers of a table, or another encoding."""
    way = random.randrange(8)
    if way == 0:
        return random.choice(
            (
                data.decode("utf-8", "replace").encode("utf-16"),
                b"\xff\xfe" + data,
                data.replace(b"a", b"\xe4"),
                data[::-1],
            )
        )
    if way == 1:
        return data.replace(b",", random.choice((b";", b"\t", b",,", b"")))
    lines = data.decode("utf-8", "replace").split("\n")
    row = 0 if way == 2 else random.randrange(len(lines))
    cells = lines[row].split(",")
    column = random.randrange(len(cells))
    if way == 3:
        cells.pop(column)
    elif way == 4:
        cells.insert(column, random.choice(cells))
    elif way == 5:
        lines.insert(row, random.choice(lines))
    else:
        cells[column] = random.choice(CELLS)
    lines[row] = ",".join(cells)
    return "\n".join(lines).encode("utf-8", "replace")


def rewrite_yaml(data, random):
    """Lines that are no settings, and anchors that grow."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    if not lines:
        return b"- "
    way = random.randrange(4)
    if way == 0:
        return (f"a: &a [x, x, x, x, x, x, x, x, x]\n{BOMB}" + "".join(lines)).encode()
    if way == 1:
        lines.insert(random.randrange(len(lines) + 1), random.choice(YAML))
    elif way == 2:
        place = random.randrange(len(lines))
        lines[place] = (
            lines[place].partition(":")[0] + ": " + random.choice([*CELLS, "{}", "[1, x]", "*a", "1e400"]) + "\n"
        )
    else:
        lines.pop(random.randrange(len(lines)))
    return "".join(lines).encode()


ANY = (flip, truncate, splice)
WAYS = {
    ".npz": (*ANY, header, repack, repack),
    ".npy": (*ANY, header, header),
    ".json": (flip, truncate, rewrite_json, rewrite_json, rewrite_json),
    ".jsonl": (flip, truncate, rewrite_lines),
    ".csv": (flip, truncate, rewrite_table, rewrite_table, rewrite_table),
    ".txt": (*ANY, rewrite_table),
    ".yaml": (flip, truncate, rewrite_yaml, rewrite_yaml, rewrite_yaml),
    ".parquet": ANY,
    ".safetensors": (*ANY, rewrite_json),
    ".ckpt": (*ANY, repack),
}
"""What may happen to a file, by its suffix."""


def damaged(data, suffix, random):
    """The bytes of a file after some accident."""
    ways = WAYS[suffix]
    for _ in range(random.choice((1, 1, 1, 2))):
        if data:
            data = random.choice(ways)(data, random)
    return data

"""Machine and versions of a measurement."""

from __future__ import annotations

import ctypes
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import equipoise

__all__ = ["PEERS", "describe_machine", "installed_version", "keep_freed_memory"]

PEERS = ("monai", "kornia", "torchvision", "timm", "liger_kernel")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Device, CPU, threads, versions, and load averages over 1, 5 and 15 minutes."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "device_type": device.type,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "equipoise": equipoise.__version__,
        **{peer: installed_version(peer) for peer in PEERS},
        **(_describe_gpu(device) if device.type == "cuda" else {}),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def _describe_gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        "triton": installed_version("triton"),
    }


def installed_version(package: str) -> str | None:
    """Version of an installed package, otherwise None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Name of the processor, from Linux or Python."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory (up to 2 GB) for the next allocation, like jemalloc or a caching allocator.

    By default it returns large blocks to the system, and every tensor of more than 32 MiB starts with a page fault for
    each 4 KiB, which can cost more than the arithmetic on it.
    """
    if platform.libc_ver()[0] != "glibc":
        raise RuntimeError("keeping freed memory needs glibc, found another C library; leave --keep-memory out")
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(mmap_max, 0)

import os

import torch
from hypothesis import settings

# Without a GPU the kernels run in Triton's interpreter, which has to be asked for before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples at every run, where a run has to say something about a commit.
settings.register_profile("repeatable", derandomize=True)
if os.environ.get("EQUIPOISE_REPEATABLE"):
    settings.load_profile("repeatable")

import os

import torch

# Without a GPU the kernels run in Triton's interpreter, which has to be asked for before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

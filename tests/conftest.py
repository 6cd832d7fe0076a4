"""What must be so before anything is imported."""

import os

# Triton reads it when it is first imported, by whichever test comes first, for its own library too. Without a GPU its
# interpreter runs the kernels.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

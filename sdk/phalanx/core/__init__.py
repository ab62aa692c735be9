"""The shared kernel: what SDK, control plane and agent agree on. Standard library and cloudpickle only."""

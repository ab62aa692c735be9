"""gpuctl."""

"""The commands of gpuctl, one module each; a module's ``command`` is what runs."""

"""The keeper: parent of a gang's ranks on one node. Single-threaded, holds no user code, outlives agent and zygote."""

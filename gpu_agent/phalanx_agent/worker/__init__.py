"""What runs in a rank's process. The only part of the agent that may import torch, and only inside functions."""

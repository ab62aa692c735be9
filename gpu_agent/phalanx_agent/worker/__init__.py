"""What runs user code. The only package of the agent that may import torch."""

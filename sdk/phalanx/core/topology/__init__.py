"""What nodes and the network between them look like, where it was read, and which GPUs are best together. Pure."""

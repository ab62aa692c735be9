"""What our scheduler is compared with: other ways, written by ourselves from what was published about them."""

"""gRPC in, commands out: authentication, permissions, conversion. No decisions."""

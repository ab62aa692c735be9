"""Generated protobuf and gRPC code of the Phalanx protocol."""

"""gRPC endpoints of a gateway: the same requests, sessions and answers as over HTTP."""

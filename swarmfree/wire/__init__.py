"""CARRIES: the ports over gRPC and the directory; codec, frames, identity, addresses. Knows `swarm` alone and moves bytes, never tensors."""

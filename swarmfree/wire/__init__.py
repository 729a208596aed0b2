"""CARRIES: the ports over gRPC and the directory; codec, frames, identity, addresses. Knows
`protocol` alone and moves bytes, never tensors.
"""

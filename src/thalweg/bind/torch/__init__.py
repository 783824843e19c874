"""PyTorch: tensors, the place in a process group, agreement of ranks. The only room besides that imports torch."""

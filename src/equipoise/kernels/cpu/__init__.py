"""The pointwise losses as fast as eager PyTorch on a CPU allows: temporaries are overwritten, batches cut in blocks."""

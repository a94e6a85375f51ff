"""Checkpoints as files to deploy: ONNX, TorchScript and AOTInductor, each checked against the model it came from."""

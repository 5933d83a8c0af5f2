"""ONNX's backend node tests, translated into forms of the language: `scripts/verify onnx`."""

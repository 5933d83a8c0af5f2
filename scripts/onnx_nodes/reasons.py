"""Why an operator is not run: an operation that the language does not list, and that no row of the tables expresses."""

from __future__ import annotations

_KINDS = {
    "inverse trigonometric functions": "Acos Asin Atan",
    "operations on bits": "BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor",
    "resampling of images": "AffineGrid GridSample Resize Upsample RoiAlign DeformConv",
    "transposed convolutions and pools": "ConvTranspose Col2Im MaxUnpool",
    "spectra": "DFT STFT MelWeightMatrix",
    "results whose shape depends on values": "Compress NonZero Unique NonMaxSuppression",
    "branches and loops on values": "If Loop",
    "optional values": "OptionalGetElement OptionalHasElement",
    "classical learning, images and texts": "ArrayFeatureExtractor TreeEnsemble TfIdfVectorizer ImageDecoder LabelEncoder",
    "attention with recurrent state or functions as attributes": "LinearAttention FlexAttention",
    "determinants": "Det",
    "draws of another generator": "Bernoulli",
}
REASON = {name: reason for reason, names in _KINDS.items() for name in names.split()}

; mlp.sexp: a three-layer perceptron; tests compare it, step by step, with the figures of scripts/record_pytorch
(defhyper hidden  64)
(defhyper classes 10)
(defhyper batch   32)
(defhyper lr      3e-4)

(deflayer mlp (x)
  (let* ((x (relu (linear x hidden)))
         (x (relu (linear x hidden))))
    (linear x classes)))

(defloader recorded
  (arrays "../data/pytorch/mlp.batches.safetensors" :batch batch :order file))

(defrun twenty-steps
  :data      recorded
  :loss      (cross-entropy (mlp x) y)
  :predict   (mlp x)
  :optimizer (adamw :lr lr :betas [0.9 0.95] :eps 1e-8 :decay 0.1)
  :steps     20)

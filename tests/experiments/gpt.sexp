; gpt.sexp: a pre-LN GPT with a tied head; tests compare it, step by step, with the figures of scripts/record_pytorch
(defhyper layers 2)
(defhyper width  48)
(defhyper heads  4)
(defhyper seq    32)
(defhyper vocab  96)
(defhyper batch  4)
(defhyper lr     3e-4)

(deflayer mlp (x)
  (linear (gelu (linear x (* 4 width) :name "up")) width :name "down"))

(deflayer self-attention (x)
  (let ((q (split-heads (linear x width :name "q") heads))
        (k (split-heads (linear x width :name "k") heads))
        (v (split-heads (linear x width :name "v") heads)))
    (linear (merge-heads (attention q k v :causal true)) width :name "out")))

(deflayer block (x)
  (let* ((x (+ x (self-attention (layernorm x) :name "attn"))))
    (+ x (mlp (layernorm x)))))

(deflayer gpt (tokens)
  (let* ((wte (param "wte" [vocab width] (normal 0.02)))
         (wpe (param "wpe" [seq width] (normal 0.02)))
         (x   (+ (embed wte tokens) wpe))
         (x   (repeat (i layers) (x x) (block x)))
         (x   (layernorm x)))
    (matmul x (transpose wte))))

(defloader recorded
  (arrays "../data/pytorch/gpt.batches.safetensors" :batch batch :order file))

(defrun twenty-steps
  :data           recorded
  :loss           (cross-entropy (gpt tokens) targets)
  :predict        (gpt tokens)
  :optimizer      (adamw :lr lr :betas [0.9 0.95] :eps 1e-8 :decay 0.1)
  :clip-grad-norm 1.0
  :steps          20)

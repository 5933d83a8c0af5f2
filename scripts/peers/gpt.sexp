; The model of scripts/bench peers, sizes toy, small and gpt2: GPT-2 with tanh GELU and a tied head.
(defhyper layers 2)
(defhyper width 128)
(defhyper heads 4)
(defhyper seq 64)
(defhyper vocab 256)
(defhyper batch 8)
(defhyper lr 3e-4)
(defhyper decay 0.01)

(deflayer mlp (x)
  (linear (gelu-tanh (linear x (* 4 width) :name "up")) width :name "down"))

(deflayer self-attention (x)
  (let ((q (split-heads (linear x width :name "q") heads))
        (k (split-heads (linear x width :name "k") heads))
        (v (split-heads (linear x width :name "v") heads)))
    (linear (merge-heads (attention q k v :causal true)) width :name "out")))

(deflayer block (x)
  (let ((x (+ x (self-attention (layernorm x :name "norm-1") :name "attn"))))
    (+ x (mlp (layernorm x :name "norm-2")))))

(deflayer gpt (tokens)
  (let* ((wte (param "wte" [vocab width] (normal 0.02)))
         (wpe (param "wpe" [seq width] (normal 0.02)))
         (x   (+ (embed wte tokens) wpe))
         (x   (repeat (i layers) (x x) (block x)))
         (x   (layernorm x :name "norm")))
    (matmul x (transpose wte))))

; The comparison gives its own batches; the loader says their fields and shapes.
(defloader corpus (builtin "text" :tokenizer (bytes) :seq seq :batch batch))

(defrun pretrain
  :data      corpus
  :loss      (cross-entropy (gpt tokens) targets)
  :optimizer (adamw :lr lr :betas [0.9 0.999] :eps 1e-8 :decay decay)
  :steps     1000000)

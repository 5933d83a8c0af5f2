; gpt2.sexp: GPT-2 124M, trained on the source text of Python's own standard library
(defhyper layers       12)
(defhyper width        768)
(defhyper heads        12)
(defhyper seq          1024)
(defhyper vocab        50_257)
(defhyper batch        1)
(defhyper microbatches 1)
(defhyper lr           6e-4)
(defhyper beta2        0.95)
(defhyper decay        0.1)

; the two products that feed the residual stream start smaller, so that depth does not widen it
(def residual-std (/ 0.02 (sqrt (* 2 layers))))

(deflayer mlp (x)
  (linear (gelu-tanh (linear x (* 4 width) :name "up" :init (normal 0.02)))
          width :name "down" :init (normal residual-std)))

(deflayer self-attention (x)
  (let ((q (split-heads (linear x width :name "q" :init (normal 0.02)) heads))
        (k (split-heads (linear x width :name "k" :init (normal 0.02)) heads))
        (v (split-heads (linear x width :name "v" :init (normal 0.02)) heads)))
    (linear (merge-heads (attention q k v :causal true))
            width :name "out" :init (normal residual-std))))

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

(defloader corpus
  (builtin "stdlib-text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part train))
(defloader held-out
  (builtin "stdlib-text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part val))

(defrun pretrain
  :data           corpus
  :loss           (cross-entropy (gpt tokens) targets)
  :predict        (gpt tokens)
  :optimizer      (adamw :lr (warmup-cosine step :peak lr :warmup 100 :total total-steps) :betas [0.9 beta2] :decay decay)
  :clip-grad-norm 1.0
  :microbatches   microbatches
  :steps          2000
  :eval           (every 500 held-out :batches 2)
  :seed           1337)

(defvariant smoke (layers 2) (width 128) (heads 4) (seq 64) (microbatches 2))
(defvariant sim (layers 2) (width 32) (heads 2) (seq 16) (batch 2) (vocab 256))

; builtin.sexp: what `sexpgpu run` trains when it is given no file: a small GPT over Python's own sources
(defhyper layers 6)
(defhyper width  384)
(defhyper heads  6)
(defhyper seq    256)
(defhyper batch  16)
(defhyper vocab  256)
(defhyper lr     1e-3)
(defhyper warmup 100)
(defhyper beta2  0.99)
(defhyper decay  0.1)
(defhyper steps  2000)
(defhyper every-steps 200)

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

(defloader corpus
  (builtin "stdlib-text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part train))
(defloader held-out
  (builtin "stdlib-text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part val))

(defmetric accuracy :reduce mean (= (argmax (gpt tokens) :axis -1) targets))

; two microbatches a step, so that two ranks can share it
(defrun builtin
  :data           corpus
  :loss           (cross-entropy (gpt tokens) targets)
  :predict        (gpt tokens)
  :optimizer      (adamw :lr (warmup-cosine step :peak lr :warmup warmup :total total-steps) :betas [0.9 beta2] :decay decay)
  :clip-grad-norm 1.0
  :microbatches   2
  :steps          steps
  :eval           (every every-steps held-out :batches 10 :metrics [accuracy])
  :seed           1337)

(defvariant smoke
  (layers 2) (width 128) (heads 4) (seq 64) (batch 8) (lr 3e-3) (warmup 20) (steps 200) (every-steps 50))
(defvariant sim (layers 1) (width 32) (heads 2) (seq 16) (batch 2) (warmup 2) (steps 3) (every-steps 3))

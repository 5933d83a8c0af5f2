; charlm.sexp: a small GPT over the bytes of a text
(defhyper layers 6)
(defhyper width  384)
(defhyper heads  6)
(defhyper seq    256)
(defhyper batch  16)
(defhyper vocab  256)
(defhyper data   "data/input.txt")
(defhyper lr     6e-4)
(defhyper beta2  0.95)
(defhyper decay  0.1)

(deflayer mlp (x)
  (linear (gelu (linear x (* 4 width) :name "up")) width :name "down"))

(deflayer self-attention (x)
  (let ((q (split-heads (linear x width :name "q") heads))
        (k (split-heads (linear x width :name "k") heads))
        (v (split-heads (linear x width :name "v") heads)))
    (linear (merge-heads (attention q k v :causal true)) width :name "out")))

(deflayer block (x)
  (let* ((x (+ x (self-attention (layernorm x) :name "attn")))
         (x (+ x (mlp (layernorm x)))))
    (probe "residual" x)))

(deflayer gpt (tokens)
  (let* ((wte (param "wte" [vocab width] (normal 0.02)))
         (wpe (param "wpe" [seq width] (normal 0.02)))
         (x   (+ (embed wte tokens) wpe))
         (x   (repeat (i layers) (x x) (block x)))
         (x   (layernorm x)))
    (matmul x (transpose wte))))

(defloader corpus
  (text data :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part train))
(defloader held-out
  (text data :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part val))

(defmetric accuracy :reduce mean (= (argmax (gpt tokens) :axis -1) targets))
(defdiagnostic residual-rms :every 50 :reduce mean
  (sqrt (mean (square (probed "*.residual")))))

(defrun pretrain
  :data         corpus                                  ; binds its fields: tokens, targets
  :loss         (cross-entropy (gpt tokens) targets)    ; f32[batch seq]: one loss an element
  :predict      (gpt tokens)
  :optimizer    (adamw :lr (warmup-cosine step :peak lr :warmup 100 :total total-steps) :betas [0.9 beta2] :decay decay)
  :clip-grad-norm 1.0
  :microbatches 4
  :steps        2000
  :precision    off
  :eval         (every 200 held-out :batches 20 :metrics [accuracy])
  :checkpoint   (every 500 :keep 3 :best held-out/loss min)
  :diagnostics  [residual-rms]
  :seed         1337)

(defvariant smoke (layers 2) (width 128) (heads 4) (seq 64))
(defvariant sim (layers 1) (width 32) (heads 2) (seq 16) (batch 2))

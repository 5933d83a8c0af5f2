; swiglu.sexp: a decoder with RMSNorm, rotary positions, grouped key/value heads and SwiGLU, without biases; tests
; compare it, step by step, with the figures of scripts/record_pytorch
(defhyper layers     2)
(defhyper width      32)
(defhyper heads      4)
(defhyper groups     2)
(def head-width (/ width heads))
(defhyper hidden     88)
(defhyper vocab      64)
(defhyper batch      4)
(defhyper lr         3e-4)

(deflayer mlp (x)
  (let ((gate (linear x hidden :name "gate" :bias false))
        (up   (linear x hidden :name "up" :bias false)))
    (linear (* (silu gate) up) width :name "down" :bias false)))

(deflayer self-attention (x)
  (let ((q (split-heads (linear x width :name "q" :bias false) heads))
        (k (split-heads (linear x (* groups head-width) :name "k" :bias false) groups))
        (v (split-heads (linear x (* groups head-width) :name "v" :bias false) groups)))
    (linear (merge-heads (attention (rope q) (rope k) v :causal true)) width :name "out" :bias false)))

(deflayer block (x)
  (let* ((x (+ x (self-attention (rmsnorm x) :name "attn"))))
    (+ x (mlp (rmsnorm x)))))

(deflayer decoder (tokens)
  (let* ((table (param "embedding" [vocab width] (normal 0.02)))
         (x     (embed table tokens))
         (x     (repeat (i layers) (x x) (block x)))
         (x     (rmsnorm x)))
    (linear x vocab :name "head" :bias false)))

(defloader recorded
  (arrays "../data/pytorch/swiglu.batches.safetensors" :batch batch :order file))

(defrun twenty-steps
  :data      recorded
  :loss      (cross-entropy (decoder tokens) targets)
  :predict   (decoder tokens)
  :optimizer (adamw :lr lr :betas [0.9 0.95] :eps 1e-8 :decay 0.1)
  :steps     20)

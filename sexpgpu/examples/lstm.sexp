; lstm.sexp: a character LSTM over the built-in text
(defhyper width  256)
(defhyper inner  128)
(defhyper seq    64)
(defhyper batch  32)
(defhyper vocab  256)
(defhyper lr     2e-3)

; One step: gates i, f, g, o as in PyTorch; the state is [h c].
(deflayer cell (state x)
  (let* (((h c) state)
         (z (+ (linear x (* 4 width) :name "input") (linear h (* 4 width) :name "state" :bias false)))
         ((i f g o) (split z 4 :axis -1))
         (c (+ (* (sigmoid f) c) (* (sigmoid i) (tanh g))))
         (h (* (sigmoid o) (tanh c))))
    (values [h c] h)))

(deflayer lstm (tokens)
  (let* ((x (embed (param "wte" [vocab inner] (normal 1.0)) (transpose tokens)))  ; [seq batch inner]
         (zero (zeros [batch width]))
         ((last hs) (scan cell [zero zero] x)))
    (permute (linear hs vocab :name "head") [1 0 2])))

(defloader corpus
  (builtin "text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part train))
(defloader held-out
  (builtin "text" :tokenizer (bytes) :seq seq :batch batch :split (train 0.9 val 0.1) :part val))

(defmetric accuracy :reduce mean (= (argmax (lstm tokens) :axis -1) targets))

(defrun pretrain
  :data           corpus
  :loss           (cross-entropy (lstm tokens) targets)
  :optimizer      (adam :lr (warmup-cosine step :peak lr :warmup 20 :total total-steps))
  :clip-grad-norm 1.0
  :steps          300
  :eval           (every 100 held-out :batches 8 :metrics [accuracy])
  :seed           7)

(defvariant smoke (width 64) (inner 32) (seq 32) (batch 8))
(defvariant sim (width 32) (inner 16) (seq 16) (batch 2))

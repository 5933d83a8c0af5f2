; The model of scripts/bench peers, size lstm: one LSTM over embedded tokens, a linear head.
(defhyper width 256)
(defhyper inner 128)
(defhyper seq 64)
(defhyper vocab 256)
(defhyper batch 32)
(defhyper lr 3e-4)
(defhyper decay 0.01)

; Two biases, as PyTorch has them.
(deflayer cell (state x)
  (let* (((h c) state)
         (z (+ (linear x (* 4 width) :name "input") (linear h (* 4 width) :name "state")))
         ((i f g o) (split z 4 :axis -1))
         (c (+ (* (sigmoid f) c) (* (sigmoid i) (tanh g))))
         (h (* (sigmoid o) (tanh c))))
    (values [h c] h)))

(deflayer lstm (tokens)
  (let* ((x (embed (param "wte" [vocab inner] (normal 0.02)) (transpose tokens)))
         (zero (zeros [batch width]))
         ((last hs) (scan cell [zero zero] x)))
    (linear hs vocab :name "head")))

; The comparison gives its own batches; the loader says their fields and shapes.
(defloader corpus (builtin "text" :tokenizer (bytes) :seq seq :batch batch))

(defrun pretrain
  :data      corpus
  :loss      (cross-entropy (lstm tokens) (transpose targets))
  :optimizer (adamw :lr lr :betas [0.9 0.999] :eps 1e-8 :decay decay)
  :steps     1000000)

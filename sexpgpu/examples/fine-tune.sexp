; fine-tune.sexp: a perceptron learns the ten digits; then, with its first layer frozen, a new head learns which are odd
;   sexpgpu run fine-tune.sexp --run pretrain
;   sexpgpu run fine-tune.sexp --run tune
(defhyper hidden 64)
(defhyper steps  400)
(defhyper batch  32)
(defhyper lr     2e-3)

(deflayer body (x)
  (let ((x (relu (linear x hidden :name "first"))))
    (relu (linear x hidden :name "second"))))

(defun digit  (x) (linear (body x) 10 :name "digits"))
(defun parity (x) (linear (body x) 2 :name "odd"))

(defloader training-digits
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part train))
(defloader held-out
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part val))

(defmetric digits-right :reduce mean (= (argmax (digit x) :axis -1) y))
(defmetric parity-right :reduce mean (= (argmax (parity x) :axis -1) (mod y 2)))

(defrun pretrain
  :data       training-digits                         ; binds its fields: x f32[32 64], y i32[32]
  :loss       (cross-entropy (digit x) y)
  :optimizer  (adamw :lr lr)
  :steps      steps
  :eval       (every 100 held-out :metrics [digits-right])
  :checkpoint (every 100 :keep 1)
  :seed       1)

(defrun tune
  :data       training-digits
  :loss       (cross-entropy (parity x) (mod y 2))
  :predict    (parity x)
  :init       (from pretrain)                         ; the newest checkpoint of pretrain: all but the new head
  :freeze     ["body.first.*"]                        ; no gradient, no optimizer state
  :optimizer  (by-name ("body.*" (adamw :lr (* 0.1 lr))) (else (adamw :lr lr)))
  :steps      (// steps 4)
  :eval       (every 50 held-out :metrics [parity-right])
  :seed       2)

(defvariant smoke (hidden 32) (steps 400))
(defvariant sim (hidden 16) (steps 8))

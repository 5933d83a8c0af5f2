; digits.sexp: a three-layer perceptron on generated 8x8 digits
(defhyper hidden 128)
(defhyper steps  500)
(defhyper lr     1e-3)

(deflayer mlp (x)
  (let* ((x (relu (linear x hidden :name "first")))
         (x (relu (linear x hidden :name "second"))))
    (linear x 10 :name "last")))

(defloader training-digits
  (builtin "digits" :batch 32 :split (train 0.8 val 0.2) :part train))
(defloader held-out
  (builtin "digits" :batch 32 :split (train 0.8 val 0.2) :part val))

(defmetric accuracy :reduce mean (= (argmax (mlp x) :axis -1) y))

(defrun classify
  :data         training-digits                       ; binds its fields: x f32[32 64], y i32[32]
  :loss         (cross-entropy (mlp x) y)
  :predict      (mlp x)
  :optimizer    (adamw :lr lr)
  :microbatches 2
  :steps        steps
  :eval         (every 100 held-out :metrics [accuracy])
  :seed         1)

(defvariant smoke (hidden 32) (steps 100))
(defvariant sim (hidden 16) (steps 3))

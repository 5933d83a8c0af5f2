; resnet.sexp: the residual network of CIFAR-10 (He et al. 2015, 20 layers) on generated digits, 32×32 pixels each
(defhyper width  16)
(defhyper blocks 3)
(defhyper batch  32)
(defhyper steps  400)
(defhyper lr     0.05)

(deflayer unit (x channels stride)
  (batchnorm (conv2d x channels 3 :stride stride :padding 1 :bias false)))

(deflayer block (x channels stride)
  (let ((y (unit (relu (unit x channels stride)) channels 1))
        (short (if (= (dim x 1) channels) x
                 (batchnorm (conv2d x channels 1 :stride stride :bias false :name "short")))))
    (relu (+ y short))))

(deflayer resnet (images)
  (let* ((x (relu (unit images width 1)))
         (x (repeat (stage 3) (x x)
              (repeat (k blocks) (x x)
                (block x (nth [width (* 2 width) (* 4 width)] stage) (if (and (> stage 0) (= k 0)) 2 1))))))
    (linear (mean x :axis [2 3]) 10)))

; Each of the 8×8 pixels four times in both directions.
(defun enlarged (x)
  (reshape (broadcast-to (reshape x [batch 1 8 1 8 1]) [batch 1 8 4 8 4]) [batch 1 32 32]))

(defloader training-digits
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part train))
(defloader held-out
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part val))

(defmetric accuracy :reduce mean (= (argmax (resnet (enlarged x)) :axis -1) y))

(defrun classify
  :data      training-digits                       ; binds its fields: x f32[32 64], y i32[32]
  :loss      (cross-entropy (resnet (enlarged x)) y)
  :predict   (resnet (enlarged x))
  :optimizer (sgd :lr (warmup-cosine step :peak lr :warmup 20 :total total-steps) :momentum 0.9 :decay 1e-4)
  :steps     steps
  :eval      (every 100 held-out :metrics [accuracy])
  :seed      1)

(defvariant smoke (width 8) (blocks 1) (steps 100) (lr 0.1))
(defvariant sim (width 2) (blocks 1) (batch 2) (steps 3))

; The model of scripts/bench peers, size resnet: the residual network of CIFAR-10 with batchnorm, SGD with momentum.
(defhyper width 16)
(defhyper blocks 3)
(defhyper batch 32)
(defhyper data "images.npz")
(defhyper lr 2e-3)

(deflayer unit (x channels stride)
  (batchnorm (conv2d x channels 3 :stride stride :padding 1 :bias false)))

(deflayer block (x channels stride)
  (let ((y (unit (relu (unit x channels stride)) channels 1))
        (short (if (= (dim x 1) channels) x (conv2d x channels 1 :stride stride :bias false :name "short"))))
    (relu (+ y short))))

(deflayer resnet (x)
  (let* ((x (relu (unit x width 1)))
         (x (repeat (stage 3) (x x)
              (repeat (k blocks) (x x)
                (block x (nth [width (* 2 width) (* 4 width)] stage) (if (and (> stage 0) (= k 0)) 2 1))))))
    (linear (mean x :axis [2 3]) 10)))

; The comparison gives its own batches; the file says their fields and shapes.
(defloader images (arrays data :batch batch))

(defrun train
  :data      images
  :loss      (cross-entropy (resnet x) y)
  :optimizer (sgd :lr lr :momentum 0.9)
  :steps     1000000)

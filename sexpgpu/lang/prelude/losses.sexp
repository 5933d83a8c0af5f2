; Losses: only the class or feature axis is reduced.

; Negative targets are no indices where they are ignored.
(defregion cross-entropy-region (logits targets label-smoothing ignore)
  (let* ((x (cast logits f32))
         (ignored (if (= ignore nil) nil (= targets ignore)))
         (index (if (= ignore nil) targets (where ignored 0 targets)))
         (z (- x (largest x -1)))
         (total (log (sum (exp z) :axis -1)))
         (picked (squeeze (gather z (expand-dims index -1) :axis -1) -1))
         (loss (if (= label-smoothing 0)
                 (- total picked)
                 (- total (+ (* (- 1 label-smoothing) picked) (* label-smoothing (mean z :axis -1)))))))
    (if (= ignore nil) loss (where ignored 0 loss))))
(defun cross-entropy (logits targets &key (label-smoothing 0) (ignore nil))
  (assert (integer? targets) "cross-entropy: targets are integers" targets)
  (assert (and (> (rank logits) 0) (= (append (shape targets) [(dim logits -1)]) (shape logits)))
          "cross-entropy: logits are [… classes], targets […]" logits targets)
  (cross-entropy-region logits targets label-smoothing ignore))

(defun integer? (x) (or (= (dtype x) i32) (= (dtype x) i64) (= (dtype x) u8) (= (dtype x) u32)))

; A [n 1] beside an [n] would broadcast to [n n] and train on pairs that do not belong together.
(defun alike (a b) (or (= (shape a) (shape b)) (= (rank a) 0) (= (rank b) 0)))

(defun binary-cross-entropy (logits targets)
  (assert (alike logits targets) "binary-cross-entropy: a loss does not broadcast, the shapes differ" logits targets)
  (+ (- (maximum logits 0) (* logits targets)) (log1p (exp (neg (abs logits))))))

(defun mse (a b)
  (assert (alike a b) "mse: a loss does not broadcast, the shapes differ" a b)
  (square (- a b)))

(defun huber (a b &key (delta 1.0))
  (assert (alike a b) "huber: a loss does not broadcast, the shapes differ" a b)
  (let ((e (abs (- a b))))
    (where (<= e delta) (* 0.5 (square e)) (* delta (- e (* 0.5 delta))))))

(defun kl-divergence (log-p log-q)
  (assert (= (shape log-p) (shape log-q)) "kl-divergence: a loss does not broadcast, the shapes differ" log-p log-q)
  (sum (* (exp log-p) (- log-p log-q)) :axis -1))

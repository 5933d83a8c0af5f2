; Reductions made of others, and tensors made of comparisons.

(defun mean (x &key (axis nil) (keep false))
  (/ (sum x :axis axis :keep keep) (size x :axis axis)))

(defun var (x &key (axis nil) (keep false) (ddof 0))
  (let ((centred (- x (mean x :axis axis :keep true))))
    (/ (sum (square centred) :axis axis :keep keep) (- (size x :axis axis) ddof))))

; The derivative of the root at 0 is 0, as PyTorch has it, here and in `norm`.
(defun std (x &key (axis nil) (keep false) (ddof 0))
  (let* ((v (var x :axis axis :keep keep :ddof ddof))
         (null (= v 0)))
    (where null 0 (sqrt (where null 1 v)))))

(defun norm (x &key (axis nil) (keep false))
  (let* ((s (sum (square x) :axis axis :keep keep))
         (null (= s 0)))
    (where null 0 (sqrt (where null 1 s)))))

; A list becomes a tensor first: as a list it differs from 0.
(defun count-nonzero (x &key (axis nil) (keep false))
  (sum (!= (broadcast-to x (shape x)) 0) :axis axis :keep keep))

; The largest value is taken out before `exp`: nothing overflows, and no gradient needs to flow through it.
(defun largest (x axis)
  (let ((m (stop-gradient (max x :axis axis :keep true))))
    (where (isfinite m) m 0)))

(defregion logsumexp-region (x axis keep)
  (let* ((m (largest x axis))
         (s (+ m (log (sum (exp (- x m)) :axis axis :keep true)))))
    (if keep s (squeeze s axis))))
; Of nothing it is log 0.
(defun logsumexp (x &key (axis nil) (keep false))
  (if (= (size x :axis axis) 0)
    (log (sum x :axis axis :keep keep))
    (logsumexp-region x (if (= axis nil) (range (rank x)) axis) keep)))

(defregion softmax-region (x axis)
  (let ((e (exp (- x (largest x axis)))))
    (/ e (sum e :axis axis :keep true))))
(defun softmax (x &key (axis -1)) (softmax-region x axis))

(defregion log-softmax-region (x axis)
  (let ((z (- x (largest x axis))))
    (- z (log (sum (exp z) :axis axis :keep true)))))
(defun log-softmax (x &key (axis -1)) (log-softmax-region x axis))

(defun one-hot (i n &key (dtype f32))
  (cast (= (expand-dims i -1) (iota n)) dtype))

; Whether element (row, column) of the last two axes lies at most k above the diagonal.
(defun below-diagonal (x k)
  (let ((rows (expand-dims (iota (dim x -2)) -1)) (columns (iota (dim x -1))))
    (<= columns (+ rows k))))
(defun tril (x &key (k 0)) (where (below-diagonal x k) x 0))
(defun triu (x &key (k 0)) (where (below-diagonal x (- k 1)) 0 x))

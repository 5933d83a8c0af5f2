; Activations. Derivatives at kinks are PyTorch's: relu has 0 at 0.

(defun relu (x) (where (<= x 0) 0 x))
(defun leaky-relu (x &key (slope 0.01)) (where (<= x 0) (* slope x) x))
(defun gelu (x) (* (* 0.5 x) (+ 1 (erf (* x (sqrt 0.5))))))
(defun gelu-tanh (x)
  (* (* 0.5 x) (+ 1 (tanh (* (sqrt (/ 2 pi)) (+ x (* 0.044715 (* x (* x x)))))))))
(defun silu (x) (* x (sigmoid x)))

; max(x, 0) + log(1 + e^-|x|) does not overflow.
(defun softplus (x) (+ (maximum x 0) (log1p (exp (neg (abs x))))))

; expm1 sees no large x, whose infinite derivative the unused side of `where` would turn into NaN.
(defun elu (x &key (alpha 1.0)) (where (> x 0) x (* alpha (expm1 (where (> x 0) 0 x)))))

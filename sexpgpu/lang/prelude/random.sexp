; Random fields, all of the one primitive: uniform in [0, 1).

(defun random-uniform (shape &key (lo 0) (hi 1)) (+ lo (* (random shape) (- hi lo))))

; Box and Muller: 1 − u is never 0.
(defun random-normal (shape)
  (let ((u (random shape)) (w (random shape)))
    (* (sqrt (* -2 (log (- 1 u)))) (cos (* (* 2 pi) w)))))

(defun random-bernoulli (p shape) (cast (< (random shape) p) f32))

(defun dropout (x p)
  (if (or (= training false) (= p 0)) x
    (where (< (random (shape x)) (- 1 p)) (* x (/ 1 (- 1 p))) 0)))

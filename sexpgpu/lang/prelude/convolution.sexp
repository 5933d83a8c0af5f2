; Convolutions and pools of [b c …]: products with windows of the last axes, reductions of them.

(defun spatial-shape (x) (map (fn (i) (dim x i)) (range 2 (rank x))))
(defun every (list) (fold (fn (a b) (and a b)) true list))

; X with `padding` more elements, of a value, on both sides of each axis behind the channels.
(defun pad-around (x padding value)
  (if (every (map (fn (p) (= p 0)) padding)) x
    (pad x (append (map (fn (i) [0 0]) (range (- (rank x) (length padding)))) (map (fn (p) [p p]) padding)) :value value)))

(defun convolution (x axes out kernel stride padding dilation groups bias init)
  (assert (= (rank x) (+ axes 2)) "a convolution takes [b c h w], conv1d takes [b c t]" x)
  (assert (and (> groups 0) (= (mod (dim x 1) groups) 0)) "the channels of a convolution do not divide by its groups" x groups)
  (assert (= (mod out groups) 0) "the output channels of a convolution do not divide by its groups" out groups)
  (let* ((sizes (each-axis kernel axes))
         (in (// (dim x 1) groups))
         (fan-in (fold * in sizes))
         (bound (if (= fan-in 0) 0 (/ 1 (sqrt fan-in))))
         (start (uniform (- bound) bound))
         (weight (param "weight" (append [out in] sizes) (if (= init nil) start init) :convolution true))
         (split (if (= groups 1) x (reshape x (append [(dim x 0) groups in] (spatial-shape x)))))
         (w (windows (pad-around split (each-axis padding axes) 0) sizes
                     :stride (each-axis stride axes) :dilation (each-axis dilation axes)))
         (grouped (if (= groups 1) weight (reshape weight (append [groups (// out groups) in] sizes))))
         (joined (einsum (cond ((and (= axes 1) (= groups 1)) "o c i, b c x i -> b o x")
                               ((= axes 1) "g o c i, b g c x i -> b g o x")
                               ((= groups 1) "o c i j, b c y x i j -> b o y x")
                               (else "g o c i j, b g c y x i j -> b g o y x"))
                         grouped w))
         (y (if (= groups 1) joined
              (reshape joined (append [(dim x 0) out] (map (fn (i) (dim joined i)) (range 3 (rank joined))))))))
    (if bias (+ y (as-channels (param "bias" [out] start) y)) y)))

(deflayer conv1d (x out kernel &key (stride 1) (padding 0) (dilation 1) (groups 1) (bias true) (init nil))
  (convolution x 1 out kernel stride padding dilation groups bias init))
(deflayer conv2d (x out kernel &key (stride 1) (padding 0) (dilation 1) (groups 1) (bias true) (init nil))
  (convolution x 2 out kernel stride padding dilation groups bias init))

; The windows of a pool, those of one place joined in the last axis.
(defun pool-windows (x kernel stride padding value)
  (assert (> (rank x) 2) "a pool takes [b c …]" x)
  (let* ((axes (- (rank x) 2))
         (sizes (each-axis kernel axes))
         (widths (each-axis padding axes)))
    (assert (every (map (fn (p k) (<= (* 2 p) k)) widths sizes)) "the padding of a pool is more than half its kernel" padding kernel)
    (let ((w (windows (pad-around x widths value) sizes :stride (if (= stride nil) sizes (each-axis stride axes)))))
      (reshape w (append (map (fn (i) (dim w i)) (range (+ axes 2))) [(fold * 1 sizes)])))))

; The gradient goes to the first of equal elements.
(defun max-pool (x kernel &key (stride nil) (padding 0))
  (let* ((w (pool-windows x kernel stride padding -inf))
         (first (= (iota (dim w -1)) (expand-dims (argmax w :axis -1) -1))))
    (sum (where first w 0) :axis -1)))

(defun avg-pool (x kernel &key (stride nil) (padding 0))
  (let* ((total (sum (pool-windows x kernel stride padding 0) :axis -1))
         (one (ones (append [1 1] (spatial-shape x)))))
    (if (= padding 0)
      (/ total (fold * 1 (each-axis kernel (- (rank x) 2))))
      (/ total (sum (pool-windows one kernel stride padding 0) :axis -1)))))

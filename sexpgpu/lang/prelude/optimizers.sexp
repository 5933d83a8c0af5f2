; Optimizers: p parameter, g mean gradient after clipping; the value is the new parameter.
; Where an optimizer decays, it does so only for parameters that decay, and by lr · decay · p (decoupled), sgd apart.

; PyTorch's SGD: the decay is added to the gradient, and momentum starts as the first gradient.

(defoptimizer sgd (p g &key (lr 0.01) (momentum 0) (nesterov false) (decay 0))
  (let ((d (if (!= decay 0) (+ g (* decay p)) g)))
    (if (= momentum 0)
      (- p (* lr d))
      (let ()
        (state buffer (zeros-like p))
        (let ((b (+ (* momentum buffer) d)))
          (update buffer b)
          (- p (* lr (if nesterov (+ d (* momentum b)) b))))))))

(defoptimizer adam (p g &key (lr 1e-3) (betas [0.9 0.999]) (eps 1e-8))
  (state m (zeros-like p))
  (state v (zeros-like p))
  (let* ((b1 (nth betas 0)) (b2 (nth betas 1))
         (m' (+ (* b1 m) (* (- 1 b1) g)))
         (v' (+ (* b2 v) (* (- 1 b2) (square g))))
         (mh (/ m' (- 1 (pow b1 updates))))
         (vh (/ v' (- 1 (pow b2 updates)))))
    (update m m') (update v v')
    (- p (* lr (/ mh (+ (sqrt vh) eps))))))

(defoptimizer adamw (p g &key (lr 1e-3) (betas [0.9 0.999]) (eps 1e-8) (decay 0.01))
  (state m (zeros-like p))
  (state v (zeros-like p))
  (let* ((b1 (nth betas 0)) (b2 (nth betas 1))
         (m' (+ (* b1 m) (* (- 1 b1) g)))
         (v' (+ (* b2 v) (* (- 1 b2) (square g))))
         (mh (/ m' (- 1 (pow b1 updates))))
         (vh (/ v' (- 1 (pow b2 updates)))))
    (update m m') (update v v')
    (- p (* lr (+ (/ mh (+ (sqrt vh) eps)) (if (decays? p) (* decay p) 0))))))

(defoptimizer lion (p g &key (lr 1e-4) (betas [0.9 0.99]) (decay 0))
  (state m (zeros-like p))
  (let* ((b1 (nth betas 0)) (b2 (nth betas 1))
         (direction (sign (+ (* b1 m) (* (- 1 b1) g)))))
    (update m (+ (* b2 m) (* (- 1 b2) g)))
    (- p (* lr (if (decays? p) (+ direction (* decay p)) direction)))))

(defun rms (x) (sqrt (mean (square x))))

; Shazeer and Stern 2018, algorithms 4 and 5, without momentum. The second moments of a matrix (of each matrix in the last
; two axes) are kept as their means over rows and over columns, as in PyTorch. `relative`: steps are min(lr, 1/√t) long;
; `scale`: and in proportion to the parameter's own size, which is at least the second of `eps`.
(defoptimizer adafactor (p g &key (lr 0.01) (relative true) (scale true) (beta-decay 0.8) (clip 1) (eps [1e-30 1e-3])
                                  (decay 0))
  (let* ((length (if relative (minimum lr (/ 1 (sqrt updates))) lr))
         (rate (if scale (* length (maximum (rms p) (nth eps 1))) length))
         (fresh (pow updates (- beta-decay)))
         (squares (+ (square g) (nth eps 0)))
         (moved (fn (moment new) (+ (* (- 1 fresh) moment) (* fresh new))))
         (direction
           (if (< (rank p) 2)
             (let ()
               (state v (zeros-like p))
               (let ((v' (moved v squares)))
                 (update v v')
                 (* g (rsqrt v'))))
             (let* ((of-rows (mean squares :axis -1 :keep true))
                    (of-columns (mean squares :axis -2 :keep true)))
               (state rows (zeros (shape of-rows)))
               (state columns (zeros (shape of-columns)))
               (let ((rows' (moved rows of-rows)) (columns' (moved columns of-columns)))
                 (update rows rows') (update columns columns')
                 ; Two square roots, as the product of two small moments would be 0 in f32.
                 (* (* g (rsqrt (/ rows' (mean rows' :axis -2 :keep true)))) (rsqrt columns'))))))
         (clipped (/ direction (maximum 1 (/ (rms direction) clip)))))
    (- (if (decays? p) (* p (- 1 (* lr decay))) p) (* rate clipped))))

(defun swap-last (x) (permute x (append (range (- (rank x) 2)) [-1 -2])))

; Of each matrix in the last two axes, with the singular value decomposition U S Vᵀ, nearly U Vᵀ: steps of the quintic
; that lifts small singular values fastest; they end about 1, not at it.
(defun orthogonalized (x steps)
  (let* ((tall (> (dim x -2) (dim x -1)))
         (wide (if tall (swap-last x) x))
         (norm (sqrt (sum (square wide) :axis [-2 -1] :keep true)))
         (made (repeat (i steps) (y (/ wide (maximum norm 1e-7)))
                 (let ((gram (matmul y (swap-last y))))
                   (+ (* 3.4445 y) (matmul (+ (* -4.7750 gram) (* 2.0315 (matmul gram gram))) y))))))
    (if tall (swap-last made) made)))

; Jordan et al. 2024, as in PyTorch: momentum's direction with all singular values made nearly 1, so much longer as a matrix
; has more outputs than inputs. A convolution's weight is the matrix [out in·window]; of more axes the last two are matrices
; [in out]. A parameter of rank 0 or 1 has no such direction: it is trained by adam at the rate `vector-lr`.
(defoptimizer muon (p g &key (lr 0.02) (momentum 0.95) (nesterov true) (steps 5) (decay 0) (vector-lr 3e-4))
  (if (< (rank p) 2)
    (adam p g :lr vector-lr :betas [0.9 0.95])
    (let* ((window (convolution? p))
           (out (dim p (if window 0 -1)))
           (in (if window (/ (size p) out) (dim p -2)))
           (rate (* lr (sqrt (maximum 1 (/ out in))))))
      (state m (zeros-like p))
      (let* ((m' (+ (* momentum m) (* (- 1 momentum) g)))
             (d (if nesterov (+ (* momentum m') (* (- 1 momentum) g)) m'))
             (direction (if window
                          (reshape (orthogonalized (reshape d [out in]) steps) (shape p))
                          (orthogonalized d steps))))
        (update m m')
        (- (if (decays? p) (* p (- 1 (* lr decay))) p) (* rate direction))))))

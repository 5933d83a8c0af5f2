; Attention and what stands around it. b batch, h heads, g heads of k and v, r = h / g, t and s positions, d width of a head.

(defun split-heads (x heads)
  (assert (= (rank x) 3) "split-heads takes [b t h·d]" x)
  (assert (= (mod (dim x 2) heads) 0) "split-heads: the width does not divide by the heads" x heads)
  (permute (reshape x [(dim x 0) (dim x 1) heads (// (dim x 2) heads)]) [0 2 1 3]))

(defun merge-heads (x)
  (assert (= (rank x) 4) "merge-heads takes [b h t d]" x)
  (reshape (permute x [0 2 1 3]) [(dim x 0) (dim x 2) (* (dim x 1) (dim x 3))]))

; What stands where a position is not attended to: e to its power is 0.
(defun attended (scores causal mask)
  (let* ((masked (if (= mask nil) scores (where mask scores -inf))))
    (if causal
      (where (<= (iota (dim scores -1)) (expand-dims (iota (dim scores -2)) -1)) masked -inf)
      masked)))

(defregion attention-region (q k v mask causal scale)
  (let* ((b (dim q 0)) (h (dim q 1)) (t (dim q 2)) (d (dim q 3)) (g (dim k 1))
         (factor (if (= scale nil) (/ 1 (sqrt d)) scale)))
    (if (= h g)
      (let ((scores (* (einsum "b h t d, b h s d -> b h t s" q k) factor)))
        (einsum "b h t s, b h s e -> b h t e" (softmax (attended scores causal mask)) v))
      (let* ((grouped (reshape q [b g (// h g) t d]))
             (scores (* (einsum "b g r t d, b g s d -> b g r t s" grouped k) factor))
             (spread (if (or (= mask nil) (< (rank mask) 3)) mask
                       (reshape (broadcast-to mask [b h t (dim k 2)]) [b g (// h g) t (dim k 2)])))
             (weights (softmax (attended scores causal spread))))
        (reshape (einsum "b g r t s, b g s e -> b g r t e" weights v) [b h t (dim v 3)])))))

(defun attention (q k v &key (causal false) (scale nil) (mask nil))
  (assert (and (= (rank q) 4) (= (rank k) 4) (= (rank v) 4)) "attention takes [b h t d]" q k v)
  (assert (and (= (dim q 0) (dim k 0)) (= (dim q 3) (dim k 3)))
          "attention: q and k differ in batch or width" q k)
  (assert (and (= (dim k 0) (dim v 0)) (= (dim k 1) (dim v 1)) (= (dim k 2) (dim v 2))) "attention: k and v do not fit" k v)
  (assert (= (mod (dim q 1) (dim k 1)) 0) "attention: the heads of q do not divide by those of k and v" q k)
  (attention-region q k v mask causal scale))

; Dimension j pairs with j + d/2; the angle is position · base^(−2j/d).
(defun rope (x &key (base 10000) (offset 0))
  (assert (= (rank x) 4) "rope takes [b h t d]" x)
  (assert (= (mod (dim x 3) 2) 0) "rope: the width of a head is odd" x)
  (let* ((half (// (dim x 3) 2))
         (power (* (cast (iota half) f32) (/ -2 (dim x 3))))
         (position (+ (cast (iota (dim x 2)) f32) offset))
         (angle (* (expand-dims position -1) (pow (cast base f32) power)))
         (c (cos angle)) (s (sin angle)))
    (let (((low high) (split x 2 :axis -1)))
      (concat [(- (* low c) (* high s)) (+ (* high c) (* low s))] :axis -1))))

; Schedules: ordinary functions of the step, computed on the host.

; How far step is on the way from `from` to `total`, at most 1.
(defun progress (step from total)
  (minimum 1 (/ (- step from) (maximum 1 (- total from)))))

(defun warmup-cosine (step &key (peak 1e-3) (warmup 0) (total 1) (floor 0.1))
  (if (<= step warmup)
    (/ (* peak step) warmup)
    (* peak (+ floor (* (- 1 floor) (* 0.5 (+ 1 (cos (* pi (progress step warmup total))))))))))

(defun warmup-linear (step &key (peak 1e-3) (warmup 0) (total 1) (floor 0))
  (if (<= step warmup)
    (/ (* peak step) warmup)
    (* peak (- 1 (* (- 1 floor) (progress step warmup total))))))

(defun constant-then-linear (step &key (peak 1e-3) (constant 0) (total 1) (floor 0))
  (if (<= step constant)
    peak
    (* peak (- 1 (* (- 1 floor) (progress step constant total))))))

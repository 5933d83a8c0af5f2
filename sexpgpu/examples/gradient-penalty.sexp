; gradient-penalty.sexp: a critic tells digits from noise, the length of its gradient held at 1 (Gulrajani et al. 2017)
;   sexpgpu run gradient-penalty.sexp
(defhyper hidden  64)
(defhyper steps   400)
(defhyper batch   32)
(defhyper lr      1e-3)
(defhyper penalty 10.0)

(deflayer critic (x)
  (let* ((x (leaky-relu (linear x hidden :name "first") :slope 0.2))
         (x (leaky-relu (linear x hidden :name "second") :slope 0.2)))
    (squeeze (linear x 1 :name "score") -1)))

(defun critic-of (x) (critic x :name "critic" :share true))

(defun fakes (x) (random-uniform (shape x)))

(defun apart (real fake) (- (critic-of fake) (critic-of real)))

; The critic is 1-Lipschitz where its gradient, at points between a digit and a fake, has the length 1.
(defun stretch (between)
  (let ((g (grad (fn (point) (sum (critic-of point))) between)))
    (square (- (sqrt (+ 1e-12 (sum (square g) :axis -1))) 1))))

(defun critic-loss (real fake share)
  (let ((between (+ (* share real) (* (- 1 share) fake))))
    (+ (apart real fake) (* penalty (stretch between)))))

(defloader training-digits
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part train))
(defloader held-out
  (builtin "digits" :batch batch :split (train 0.8 val 0.2) :part val))

(defmetric distance :reduce mean (- (apart x (fakes x))))  ; the critic's estimate of the distance between the two

(defrun gradient-penalty
  :data       training-digits  ; binds its fields: x f32[32 64], y i32[32]
  :loss       (critic-loss x (fakes x) (random-uniform [batch 1]))
  :predict    (critic-of x)
  :optimizer  (adamw :lr lr :betas [0.5 0.9] :decay 0)
  :steps      steps
  :eval       (every 100 held-out :metrics [distance])
  :checkpoint (every 100 :keep 1)
  :seed       1)

(defvariant smoke (hidden 32) (steps 60))
(defvariant sim (hidden 16) (steps 8))

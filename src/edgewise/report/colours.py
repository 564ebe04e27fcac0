"""The colours of figures: those of Okabe and Ito, which colour-blind readers tell apart too."""

BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
BLACK, OCHRE = "#000000", "#B07D00"
GREY = "#8C8C8C"  # a middle one: it shows on a white and on a black ground

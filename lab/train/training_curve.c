// SPDX-License-Identifier: Apache-2.0
#include "lab/train/training_curve.h"

#include "lab/plot.h"

#define WIDTH       1000
#define HEIGHT      600
#define MAX_POINTS  2000 // points per curve
#define MEAN_SHARE  50   // the running mean is over the last 1/50 of all steps
#define TITLE_BYTES 256

static void write_curve(FILE *script, const float *values, int64_t n, int64_t window) {
    int64_t every = (n + MAX_POINTS - 1) / MAX_POINTS;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)values[i];
        sum -= i >= window ? (double)values[i - window] : 0;
        if (i % every == 0 || i == n - 1) {
            fprintf(script, "%lld %.6g\n", (long long)i + 1, sum / (double)(i < window ? i + 1 : window));
        }
    }
    fputs("e\n", script);
}

enum sl_status sl_training_curve_draw(const struct sl_trainer *trainer, const char *title, const char *path,
                                      struct sl_error *err) {
    struct sl_plot plot;
    char quoted[TITLE_BYTES];
    int64_t n = sl_trainer_step_number(trainer), window = n / MEAN_SHARE > 1 ? n / MEAN_SHARE : 1;
    if (sl_plot_open(&plot, path, WIDTH, HEIGHT, err) == SL_OK) {
        FILE *script = plot.script;
        fprintf(script, "set title %s\n", sl_plot_quote(title, quoted, sizeof quoted));
        fprintf(script, "set xlabel 'step'\nset xrange [1:%lld]\nset grid\n", (long long)(n > 1 ? n : 2));
        fprintf(script, "set ylabel 'smooth-L1 loss'\nset yrange [0:*]\nset ytics nomirror\n");
        fprintf(script, "set y2label 'overlap of the best tenth'\nset y2range [0:1]\nset y2tics\n");
        fprintf(script, "plot '-' with dots linecolor rgb '#9ec5e8' notitle, "
                        "'-' with lines linewidth 2 linecolor rgb '#1f6fb4' title 'smooth-L1', "
                        "'-' axes x1y2 with dots linecolor rgb '#f0c090' notitle, "
                        "'-' axes x1y2 with lines linewidth 2 linecolor rgb '#d06000' title 'overlap'\n");
        write_curve(script, trainer->curve.smooth_l1, n, 1);
        write_curve(script, trainer->curve.smooth_l1, n, window);
        write_curve(script, trainer->curve.overlap, n, 1);
        write_curve(script, trainer->curve.overlap, n, window);
    }
    return sl_plot_finish(&plot, err);
}

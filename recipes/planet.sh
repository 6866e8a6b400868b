#!/bin/sh
# Trains a model of the planet from nothing: simulates its data, trains both networks, scores them.
#
#   recipes/planet.sh                        the bundled model, on one GPU
#   recipes/planet.sh planet-large           the large one
#   WORK=/dev/shm recipes/planet.sh planet simulate autoencoder
#                                            some of the steps, their data elsewhere
#
# The data take 91 GB, those of planet-large 112 GB. Each step goes on where it was when it is killed
# and called again; data and networks that are done are not made again.
# `runs/PRESET` holds the model, `runs/PRESET/scores` what it is worth.
set -eu

PRESET=${1:-planet}
[ $# -gt 0 ] && shift
STEPS=${*:-simulate single autoencoder score-autoencoder representation encode denoiser score-prior}
WORK=${WORK:-work}
RUN=${RUN:-runs/$PRESET}
APPA=${APPA:-appa}
WORKERS=${WORKERS:-$(nproc)}
STATES=$WORK/planet.zarr
LATENTS=$WORK/$PRESET-latents.zarr
SINGLE=$STATES # what the autoencoder is trained on
# Hours of one trajectory are alike, trajectories are not: 36 members to train on, two each to
# validate and to test, three days out of every fifteen of a year.
SIMULATED="--members 36 --held-out 2 --stretch 72 --each 15"
if [ "$PRESET" = planet-large ]; then
    # A large autoencoder would learn three days out of fifteen by heart: it has states of all days,
    # every five hours, so that all hours of the day are among them. (Of every eighth hour, it knew
    # the sun over continents at three times of day, and erred at others.)
    STATES=$WORK/planet-hours.zarr
    SINGLE=$WORK/planet-5h.zarr
    SIMULATED="--members 1 --held-out 6 --stretch 96 --each 30"
fi

mkdir -p "$WORK"
for step in $STEPS; do
    echo "== $step"
    case $step in
    simulate)
        # shellcheck disable=SC2086 # these are options
        [ -d "$STATES" ] || $APPA data simulate "$STATES" $SIMULATED --first-year 1901 --days 360
        ;;
    single)
        [ "$SINGLE" = "$STATES" ] || [ -d "$SINGLE" ] || $APPA data simulate "$SINGLE" \
            --members 36 --held-out 2 --first-year 1901 --days 360 --every 5
        ;;
    autoencoder)
        $APPA train autoencoder "$PRESET" --data "$SINGLE" --out "$RUN" \
            --every 20000 --validate-every 20000 --workers "$WORKERS"
        ;;
    score-autoencoder)
        $APPA score autoencoder "$RUN" --data "$SINGLE" --train-data "$SINGLE" \
            --climatology planet --out "$RUN/scores" --batch 64
        ;;
    representation)
        # what the decoder cannot express, from the members it is validated on
        $APPA representation "$RUN" --data "$STATES" --windows 96 --batch 64
        ;;
    encode)
        # A denoiser learns weather by heart sooner than an autoencoder does. It has three days out
        # of every five, which are encoded as they are simulated: as states they would take 270 GB.
        [ -d "$LATENTS" ] || $APPA data simulate "$LATENTS" --encode "$RUN" --members 36 \
            --held-out 2 --first-year 1901 --days 360 --stretch 72 --each 5
        ;;
    denoiser)
        $APPA train denoiser "$RUN" --data "$LATENTS" \
            --every 5000 --validate-every 2000 --workers "$WORKERS"
        ;;
    score-prior)
        scores="--data $STATES --climatology planet --members 48 --batch 24"
        $APPA score prior "$RUN" $scores --out "$RUN/scores"
        $APPA score prior "$RUN" $scores --hours 72 --mode composed --out "$RUN/scores/composed"
        ;;
    bundle)
        # as the package holds its model; not one of the steps that are taken by themselves
        ${PYTHON:-python} -c "import appa, sys; appa.load(sys.argv[1]).save(sys.argv[2], half=True)" \
            "$RUN" "$RUN-half"
        ;;
    *)
        echo "unknown step $step; steps: simulate single autoencoder score-autoencoder representation" \
            "encode denoiser score-prior bundle" >&2
        exit 2
        ;;
    esac
done

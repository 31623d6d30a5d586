#!/bin/sh
# State of the job with the given number in the one word that Snakemake wants: running, success or failed.
answer=$(squeue --noheader --states=all --format=%T --jobs "$1" 2>&1)
case "$answer" in
COMPLETED) echo success ;;
PENDING | CONFIGURING | RUNNING | COMPLETING | SUSPENDED | REQUEUED | RESIZING | SIGNALING | STAGE_OUT | STOPPED)
    echo running
    ;;
# No such job, and states such as CANCELLED, FAILED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY.
*"Invalid job id"* | CANCELLED | FAILED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY | PREEMPTED | BOOT_FAIL | DEADLINE)
    echo failed
    ;;
# The controller does not answer: ask again later.
*) echo running ;;
esac

"""The one exception that reaches a user: a sentence that says what is wrong, where, and what to do."""

import errno


class UserError(Exception):
    """Bad input or a broken surrounding (disk, network, permissions), told in one sentence.

    The command line prints the message after `error:` and exits with 1; no traceback is shown.
    """


def sentence_for_os_error(error: OSError) -> str:
    """Turn an operating-system error into a sentence with a way out.

    Args:
        error: what the operating system reported while a file was read or written.

    Returns:
        One sentence naming the file and what to do.
    """
    where = str(error.filename2 or error.filename or "a file")
    advice = {
        errno.ENOSPC: "the disk is full; free some space and run the same command again",
        errno.EDQUOT: "your disk quota is used up; free some space and run the same command again",
        errno.EACCES: "no permission; check the owner and mode of the file and of its folder",
        errno.EPERM: "no permission; check the owner and mode of the file and of its folder",
        errno.EROFS: "the file system is read-only; choose a folder that can be written",
        errno.ENOENT: "it does not exist; check the path",
        errno.EISDIR: "it is a folder where a file was expected; check the path",
        errno.ENOTDIR: "a part of its path is a file, not a folder; check the path",
    }.get(error.errno or 0, (error.strerror or str(error)).lower())
    return f"cannot use {where}: {advice}"

"""The jobs and the command line. Here parts are wired; `checker` decides, `storage` stores."""

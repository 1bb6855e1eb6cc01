"""What streamlit runs at every move of a slider; a process that is spawned meanwhile imports it and must not."""

if __name__ == "__main__":
    from attnrisk.explorer.page import show

    show()

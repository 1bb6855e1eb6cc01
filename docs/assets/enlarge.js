// A click on a figure, or Enter on it, shows it in a dialog as large as the window. Escape or a click closes it.
const dialog = document.createElement("dialog");
dialog.className = "enlarged";
dialog.setAttribute("aria-label", "Enlarged figure");
dialog.addEventListener("click", () => dialog.close());
document.body.append(dialog);

for (const image of document.querySelectorAll("article p > img")) {
  const enlarge = () => {
    const copy = image.cloneNode();
    copy.removeAttribute("tabindex");
    copy.removeAttribute("role");
    dialog.replaceChildren(copy);
    dialog.showModal();
  };
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.title = "Enlarge";
  image.addEventListener("click", enlarge);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      enlarge();
    }
  });
}

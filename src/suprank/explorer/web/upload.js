// Search by an image that is chosen, dropped or pasted: a preview, then Search or Cancel. Without this script there is a plain form.
{
  const form = document.querySelector("form.upload");
  const unavailable = document.querySelector("details.upload"); // no run has a model
  const holdsFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");

  if (form) {
    const input = form.querySelector("input[type=file]");
    const dialog = form.querySelector("dialog");
    const [heading, about, status] = ["h2", "#preview-about", "[role=status]"].map((one) => dialog.querySelector(one));
    const picture = new Image();
    picture.alt = "preview of the image";
    const search = dialog.querySelector(".search-now");
    const cancel = dialog.querySelector(".cancel");
    let sending = false;

    const size = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

    // Why a file cannot be searched for; empty if it can. A browser knows the type by the name, and not of every name.
    function problem(files) {
      const file = files[0];
      const most = Number(form.dataset.most);
      const types = input.accept.split(",");
      if (!file) return "There is no image in the clipboard; copy one first.";
      if (files.length > 1) return `These are ${files.length} files; search by one image at a time.`;
      if (!file.size) return `${file.name} is empty.`;
      if (!file.type.startsWith("image/") && file.type) return `${file.name} is not an image.`;
      if (file.type && !types.includes(file.type)) return `${file.name} cannot be read; save it as JPEG or PNG.`;
      if (file.size > most) return `${file.name} has ${size(file.size)}; choose an image of at most ${most / 1e6} MB.`;
      return "";
    }

    function reset(message) {
      sending = false;
      search.disabled = false;
      for (const one of dialog.querySelectorAll(".search-now, .note")) one.hidden = Boolean(message);
      cancel.textContent = message ? "Close" : "Cancel";
      picture.remove();
      status.textContent = "";
    }

    function dismiss() {
      if (sending) window.stop();
      reset();
      form.reset();
      dialog.close();
    }

    // Show the files in the dialog; `files` is a FileList, which the form then sends unchanged.
    function preview(files) {
      const file = files[0];
      const message = problem(files);
      reset(message);
      heading.textContent = message ? "This cannot be searched" : "Search by this image?";
      about.textContent = message || `${file.name}, ${size(file.size)}`;
      if (message) {
        form.reset();
      } else {
        if (input.files !== files) input.files = files;
        const reader = new FileReader();
        reader.addEventListener("load", () => {
          if (input.files[0] === file) picture.src = reader.result; // not if it was canceled since
        });
        reader.addEventListener("error", () => (status.textContent = "The file cannot be read."));
        reader.readAsDataURL(file);
      }
      if (!dialog.open) dialog.showModal();
      (message ? cancel : search).focus();
    }

    picture.addEventListener("load", () => {
      heading.after(picture);
      about.textContent += `, ${picture.naturalWidth} × ${picture.naturalHeight} pixels`;
    });
    picture.addEventListener("error", () => {
      status.textContent = "This browser cannot show the file. It may be damaged, or of a kind that only the search can read.";
    });
    input.addEventListener("change", () => input.files.length && preview(input.files));
    cancel.addEventListener("click", dismiss);
    dialog.addEventListener("cancel", dismiss); // Esc
    dialog.addEventListener("keydown", (event) => event.stopPropagation()); // no shortcuts of the page below
    form.addEventListener("submit", () => {
      sending = true;
      search.disabled = true;
      status.textContent = "Searching … The first search also loads the model.";
    });
    window.addEventListener("pageshow", (event) => {
      if (!event.persisted) return; // back from the results
      sending = false;
      dismiss();
    });

    document.addEventListener("drop", (event) => holdsFiles(event) && preview(event.dataTransfer.files));
    document.addEventListener("paste", (event) => {
      const files = event.clipboardData.files;
      const field = event.target.closest("input, textarea, [contenteditable]");
      const other = document.querySelector("dialog[open]");
      if (field && (!files.length || event.clipboardData.types.includes("text/plain"))) return;
      if (other && other !== dialog) return;
      event.preventDefault();
      preview(files);
    });
    form.querySelector(".send").hidden = true;
    form.querySelector(".hint").hidden = false;
    form.reset(); // a browser may keep a file over a reload, without a preview
  }

  // A file that is dropped beside the control must not replace the page, whether it can be searched for or not.
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", Boolean(form));
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (holdsFiles(event)) event.preventDefault();
  });
  if (unavailable) {
    const explain = () => {
      unavailable.open = true;
      unavailable.scrollIntoView({ block: "nearest" });
    };
    document.addEventListener("drop", (event) => holdsFiles(event) && explain());
    document.addEventListener("paste", (event) => event.clipboardData.files.length && explain());
  }
}

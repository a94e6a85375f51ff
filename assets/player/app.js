// What ties the player to Gradio: each custom component mounts one of these by name, and redraws when Python sends a
// new value. Visitors' text never passes through Gradio's templates, which would run it as code.
// app.py puts this after player.js and results.js in one inline module.

const rmdmMounts = {
  player(root, props, trigger) {
    const player = createPlayer(root, {
      hint: props.hint || "",
      onEdit: (line, whole, values) => {
        props.value = JSON.stringify({ ...JSON.parse(props.value), line, start: values });
        trigger(whole ? "submit" : "input");
      },
    });
    // Gradio's textboxes tell of key presses only: a paste or a Backspace must be seen too.
    let timer = null;
    document.addEventListener("input", (event) => {
      if (!event.target.closest(props.fields)) return;
      clearTimeout(timer);
      timer = setTimeout(() => trigger("edit"), 300);
    });
    return (value) => player.show(value);
  },
  compare(root) {
    const duel = createCompare(root);
    return (value) => (value ? duel.show(value.runs, value.labels) : duel.show(null));
  },
  results(root) {
    const results = createResults(root);
    return (value) => results.show(value);
  },
  message(root) {
    const line = document.createElement("p");
    line.className = "rmdm-note";
    line.setAttribute("role", "status");
    root.replaceChildren(line);
    return ({ text, error }) => {
      line.textContent = text;
      line.hidden = !text;
      line.classList.toggle("rmdm-error", error);
    };
  },
};

window.rmdmMount = (kind, element, props, trigger, watch) => {
  const root = document.createElement("div");
  element.replaceChildren(root);
  const show = rmdmMounts[kind](root, props, trigger);
  const draw = () => show(JSON.parse(props.value)); // values come as JSON text, see pack() in app.py
  watch("value", draw);
  draw();
};
window.dispatchEvent(new Event("rmdm-ready"));

// Runs the worker of the site's search in a hidden frame where the site is opened from its folder: browsers allow no
// Web Worker there. From a server, the browser's own Worker is used.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        `<script>postMessage = message => parent.postMessage(message, "*")<\/script><script src="${url}"><\/script>`;
      this.loaded = new Promise(resolve => this.frame.addEventListener("load", resolve));
      addEventListener("message", event => {
        if (event.source === this.frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      document.body.append(this.frame);
    }

    postMessage(message) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: message })));
    }
  };
}
